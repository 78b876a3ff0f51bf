// Single keys: the element whose data-key is pressed is focused and clicked, unless somebody is writing.
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.altKey || event.metaKey || event.repeat) return;
  if (event.target.matches("input[type=text], input[type=password], input[type=search], textarea, select")) return;
  const found = document.querySelector(`[data-key="${CSS.escape(event.key)}"]`);
  if (!found) return;
  event.preventDefault();
  found.focus();
  if (!found.matches("input[type=text]")) found.click();
});

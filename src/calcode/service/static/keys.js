// Single keys: the element whose data-key is pressed is focused and clicked, unless somebody is writing.
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.altKey || event.metaKey || event.repeat) return;
  if (event.target.matches("input[type=text], input[type=password], input[type=search], textarea, select")) return;
  const found = document.querySelector(`[data-key="${CSS.escape(event.key)}"]`);
  // What is folded away is not pressed.
  if (!found || (found.checkVisibility && !found.checkVisibility())) return;
  event.preventDefault();
  found.focus();
  if (!found.matches("input[type=text]")) found.click();
});
// An enlarged image shows its middle first; without this script it is scrolled there by hand.
document.addEventListener("change", (event) => {
  if (!event.target.matches(".zoom")) return;
  const frame = event.target.closest(".picture").querySelector(".frame");
  frame.scrollTo((frame.scrollWidth - frame.clientWidth) / 2, (frame.scrollHeight - frame.clientHeight) / 2);
});

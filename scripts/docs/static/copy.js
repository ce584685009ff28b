// A button at every example that copies it. Where the clipboard is closed to the page it selects the example instead.
for (const box of document.querySelectorAll("div.highlight")) {
  const text = box.querySelector("pre");
  const button = document.createElement("button");
  button.type = "button";
  button.className = "copy-example";
  button.textContent = "Copy";
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(text.textContent.trimEnd());
      button.textContent = "Copied";
    } catch {
      getSelection().selectAllChildren(text);
      button.textContent = "Selected";
    }
    setTimeout(() => (button.textContent = "Copy"), 2000);
  });
  box.append(button);
}

// What makes a page hard to read. Evaluated in it: {problems, background}, the latter its luminance.
(() => {
  const problems = [];
  if (document.documentElement.scrollWidth > innerWidth) problems.push("the page scrolls sideways");

  const range = document.createRange();
  const linesOf = (node) => {
    range.selectNodeContents(node);
    return new Set([...range.getClientRects()].map((each) => Math.round(each.top))).size;
  };
  for (const table of document.querySelectorAll("article table")) {
    const name = table.rows[0].innerText.replaceAll("\t", " | ");
    const box = table.parentElement;
    if (table.scrollWidth > box.clientWidth) problems.push(`a table scrolls sideways: ${name}`);
    for (const cell of table.querySelectorAll("td")) {
      if (cell.innerText.length > 80 && cell.clientWidth < 150)
        problems.push(`a narrow column: ${cell.innerText}`);
      for (const code of cell.querySelectorAll("code"))
        for (const part of code.childNodes)
          if (!/[\s-]/.test(part.textContent) && linesOf(part) > 1)
            problems.push(`broken in the middle: ${code.innerText}`);
    }
  }

  // Contrast, by WCAG 2: at least 4.5 for text.
  const parse = (color) => {
    const [red, green, blue, alpha = 1] = color.match(/[\d.]+/g).map(Number);
    return { rgb: [red, green, blue], alpha };
  };
  const over = (front, back) =>
    front.rgb.map((each, n) => each * front.alpha + back[n] * (1 - front.alpha));
  const luminance = (rgb) => {
    const [red, green, blue] = rgb.map((each) =>
      each / 255 <= 0.04045 ? each / 255 / 12.92 : ((each / 255 + 0.055) / 1.055) ** 2.4
    );
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
  };
  const backgroundOf = (element) => {
    if (element === null) return [255, 255, 255];
    return over(parse(getComputedStyle(element).backgroundColor), backgroundOf(element.parentElement));
  };
  const seen = new Set();
  for (const element of document.querySelectorAll("article :is(p, li, td, th, a, code, code span)")) {
    const what = `${element.tagName.toLowerCase()}.${element.className}`;
    if (seen.has(what) || !element.innerText || what === "a.headerlink") continue;
    seen.add(what);
    const back = backgroundOf(element);
    const front = over(parse(getComputedStyle(element).color), back);
    const [light, dark] = [luminance(front), luminance(back)].sort((a, b) => b - a);
    const contrast = (light + 0.05) / (dark + 0.05);
    if (contrast < 4.5)
      problems.push(`contrast ${contrast.toFixed(2)} of ${what}: ${element.innerText.slice(0, 40)}`);
  }

  for (const each of performance.getEntriesByType("resource"))
    if (!each.name.startsWith("file:") && !each.name.startsWith("data:"))
      problems.push(`loaded from elsewhere: ${each.name}`);
  return { problems, background: luminance(backgroundOf(document.querySelector("article"))) };
})();

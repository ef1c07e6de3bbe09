// Says what is seen on a page at once, and after a search if the address has one. The colours are
// those of both palettes; text has to differ from what is below it as WCAG's level AA asks.
const lum = c => { const [r, g, b] = c.map(v => (v /= 255) <= 0.03928 ? v / 12.92 :
  ((v + 0.055) / 1.055) ** 2.4); return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
const rgba = t => { const m = t.match(/[\d.]+/g).map(Number); return [m.slice(0, 3), m[3] ?? 1]; };
const over = (top, a, below) => top.map((v, i) => v * a + below[i] * (1 - a));
const ground = e => { let [c, a] = e ? rgba(getComputedStyle(e).backgroundColor) : [[255, 255, 255], 1];
  return a === 1 ? c : over(c, a, ground(e.parentElement)); };
const faint = () => [...document.querySelectorAll(".md-content *, .md-nav *, .md-header *")]
  .filter(e => [...e.childNodes].some(n => n.nodeType === 3 && n.data.trim()))
  .filter(e => e.getClientRects().length && !e.closest(".headerlink, svg, [hidden]"))
  .filter(e => { const s = getComputedStyle(e), back = ground(e), [c, a] = rgba(s.color);
    if (s.visibility === "hidden" || s.opacity < 1 || a === 0) return false;
    const [hi, lo] = [lum(over(c, a, back)), lum(back)].sort((x, y) => y - x);
    const size = parseFloat(s.fontSize), large = size >= 24 || (size >= 18.6 && s.fontWeight >= 700);
    return (hi + 0.05) / (lo + 0.05) < (large ? 3 : 4.5); })
  .map(e => `${e.tagName} ${e.className} "${e.textContent.trim().slice(0, 30)}" ` +
    `${getComputedStyle(e).color} on ${ground(e)}`);
addEventListener("load", async () => {
  const wanted = new URLSearchParams(location.search).has("q");
  const hits = () => document.querySelectorAll(".md-search-result__item").length;
  for (let i = 0; wanted && !hits() && i < 300; i++) await new Promise(r => setTimeout(r, 100));
  await new Promise(r => setTimeout(r, 300));
  const loaded = performance.getEntriesByType("resource");
  const pale = {}, still = document.createElement("style");
  still.textContent = "* { transition: none !important }";
  document.head.append(still);
  for (const scheme of ["default", "slate"]) {
    document.body.setAttribute("data-md-color-scheme", scheme);
    document.documentElement.offsetHeight;
    pale[scheme] = [...new Set(faint())].slice(0, 5);
  }
  say({width: innerWidth, content: document.documentElement.scrollWidth, hits: hits(), pale,
    broken: [...document.images].filter(i => i.complete && !i.naturalWidth).map(i => i.src),
    hosts: loaded.map(e => new URL(e.name).host).filter(h => h !== location.host),
    bytes: loaded.reduce((sum, e) => sum + e.decodedBodySize,
      performance.getEntriesByType("navigation")[0].decodedBodySize)});
});

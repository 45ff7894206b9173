// Before the first paint: what the reader chose last time, or what the address asks for.
(function () {
  var root = document.documentElement;
  var known = { lang: ["en", "zh"], theme: ["light", "dark"] };
  root.classList.add("js");
  function chosen(name) {
    var asked = new RegExp("[?&]" + name + "=(\\w+)").exec(location.search);
    if (asked && known[name].indexOf(asked[1]) >= 0) return asked[1];
    try {
      var kept = localStorage.getItem("pagedkv-" + name);
      return known[name].indexOf(kept) >= 0 ? kept : null;
    } catch (error) {
      return null;
    }
  }
  var lang = chosen("lang");
  var theme = chosen("theme");
  if (lang) root.lang = lang;
  if (theme) root.dataset.theme = theme;
})();

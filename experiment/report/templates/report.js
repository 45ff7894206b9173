function save(name, blob) {
  var link = document.createElement("a");
  var address = URL.createObjectURL(blob);
  link.href = address;
  link.download = name;
  document.body.appendChild(link);
  link.click();
  link.remove();
  setTimeout(function () {
    URL.revokeObjectURL(address);
  }, 1000);
}

(function () {
  "use strict";
  var root = document.documentElement;
  var dark = window.matchMedia("(prefers-color-scheme: dark)");

  function keep(name, value) {
    try {
      localStorage.setItem("pagedkv-" + name, value);
    } catch (error) {
      // A page from a file may have no storage; the choice then lasts as long as the page.
    }
  }

  function all(selector) {
    return Array.prototype.slice.call(document.querySelectorAll(selector));
  }

  function showLanguage(lang) {
    root.lang = lang;
    document.title = document.querySelector("head title").dataset[lang];
    all("[data-language]").forEach(function (button) {
      button.setAttribute("aria-pressed", String(button.dataset.language === lang));
    });
    // A drawing names itself in one language, and browsers show its first title as a hint.
    all("svg[role=img]").forEach(function (image) {
      image.setAttribute("aria-labelledby", image.id + "-title-" + lang);
      image.setAttribute("aria-describedby", image.id + "-desc-" + lang);
      var title = document.getElementById(image.id + "-title-" + lang);
      if (title) image.insertBefore(title, image.firstChild);
    });
  }

  function theme() {
    return root.dataset.theme || (dark.matches ? "dark" : "light");
  }

  function showTheme() {
    document.getElementById("theme").setAttribute("aria-pressed", String(theme() === "dark"));
  }

  all("[data-language]").forEach(function (button) {
    button.addEventListener("click", function () {
      showLanguage(button.dataset.language);
      keep("lang", button.dataset.language);
    });
  });
  document.getElementById("theme").addEventListener("click", function () {
    root.dataset.theme = theme() === "dark" ? "light" : "dark";
    keep("theme", root.dataset.theme);
    showTheme();
  });
  if (dark.addEventListener) dark.addEventListener("change", showTheme);

  // A table stands in the page as gzip in base64.
  function unpacked(table) {
    var bytes = Uint8Array.from(atob(table), function (sign) {
      return sign.charCodeAt(0);
    });
    var stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    return new Response(stream).blob(); // as bytes, a byte-order mark included
  }

  function offer(name, type, text) {
    var button = document.createElement("button");
    button.type = "button";
    button.textContent = name;
    button.addEventListener("click", function () {
      Promise.resolve(text()).then(function (content) {
        save(name, new Blob([content], { type: type }));
      });
    });
    document.getElementById("downloads").appendChild(button);
  }

  function offerAll() {
    var data = JSON.parse(document.getElementById("run-data").textContent);
    offer(data.name || "run.json", "application/json", function () {
      var copy = Object.assign({}, data);
      delete copy.tables;
      return JSON.stringify(copy, null, 2);
    });
    // Browsers from before 2023 cannot unpack them; the files lie beside the page.
    if (!window.DecompressionStream) return;
    Object.keys(data.tables).forEach(function (name) {
      offer(name, "text/csv;charset=utf-8", function () {
        return unpacked(data.tables[name]);
      });
    });
  }

  if (document.getElementById("downloads")) offerAll();
  showLanguage(root.lang);
  showTheme();
})();

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

  function offer(name, type, text) {
    var button = document.createElement("button");
    button.type = "button";
    button.textContent = name;
    button.addEventListener("click", function () {
      var link = document.createElement("a");
      var address = URL.createObjectURL(new Blob([text()], { type: type }));
      link.href = address;
      link.download = name;
      document.body.appendChild(link);
      link.click();
      link.remove();
      setTimeout(function () {
        URL.revokeObjectURL(address);
      }, 1000);
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
    Object.keys(data.tables).forEach(function (name) {
      // The mark at the front lets spreadsheets read the file as UTF-8.
      offer(name, "text/csv;charset=utf-8", function () {
        return "\ufeff" + data.tables[name];
      });
    });
  }

  if (document.getElementById("downloads")) offerAll();
  showLanguage(root.lang);
  showTheme();
})();

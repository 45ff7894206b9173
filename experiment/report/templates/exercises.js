// Details with an answer (`data-answer`; several between |) get an input before them: a right answer
// opens them. Of an answer with numbers these count, in order.
(function () {
  "use strict";
  const plain = (text) => text.normalize("NFKC").toLowerCase().replace(/[\s.。"'`]+$/, "").trim();
  const numbers = (text) => (text.replace(/(?<=\d),(?=\d{3})/g, "").match(/\d+(\.\d+)?/g) || []).map(Number).join(" ");

  function isRight(given, answer) {
    const [mine, right] = [plain(given), plain(answer)];
    return mine === right || (numbers(right) !== "" && numbers(mine) === numbers(right));
  }

  for (const details of document.querySelectorAll("details[data-answer]")) {
    const form = document.getElementById("exercise").content.firstElementChild.cloneNode(true);
    const [right, notYet] = form.querySelector("[role=status]").children;
    details.before(form);
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      const given = form.querySelector("input").value;
      const found = details.dataset.answer.split("|").some((answer) => isRight(given, answer));
      [right.hidden, notYet.hidden] = [!found, found];
      if (found) details.open = true;
    });
  }
})();

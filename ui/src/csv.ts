// What is shown, as a file that a spreadsheet opens; no cell of it can be taken for a formula.

const cell = (text: string): string => `"${(/^\s*[=+\-@＝＋－＠]/.test(text) ? `'${text}` : text).replaceAll('"', '""')}"`;

export function save(name: string, lines: readonly (readonly string[])[]): void {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob(["\ufeff", lines.map((each) => each.map(cell).join(",")).join("\r\n"), "\r\n"], { type: "text/csv" }));
  link.download = name;
  link.click();
  URL.revokeObjectURL(link.href);
}

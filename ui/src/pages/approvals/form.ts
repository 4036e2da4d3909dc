// What an argument may be, checked where it is typed: the server checks it again, and so does the program before anything runs.
import type { Argument } from "../../api.ts";

type Field = NonNullable<Argument["field"]>;

/** Why a draft, as JSON, is not what its argument may be, in one sentence; null where it may be. */
export function wrong(argument: Argument, json: string): string | null {
  const field = argument.field;
  const name = argument.name;
  if (!field) return null;
  if (json.trim() === "") return field.required ? `${name} is needed.` : null;
  if (json === "null" && field.nullable) return null;
  if (field.kind === "whole" && !/^-?\d+$/.test(json)) return `${name} must be a whole number.`;
  if (field.kind === "number" && !/^-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?$/.test(json)) return `${name} must be a number.`;
  if (field.kind === "whole" || field.kind === "number") return outside(name, field, Number(json));
  if (field.kind === "text") return ofWrongLength(name, field, JSON.parse(json) as string);
  if (field.kind === "json" && !isJson(json)) return `${name} must be JSON.`;
  return null;
}

function outside(name: string, field: Field, value: number): string | null {
  if (field.least !== null && value < field.least) return `${name} must be at least ${field.least}.`;
  if (field.above !== null && value <= field.above) return `${name} must be more than ${field.above}.`;
  if (field.most !== null && value > field.most) return `${name} must be at most ${field.most}.`;
  if (field.below !== null && value >= field.below) return `${name} must be less than ${field.below}.`;
  return null;
}

function ofWrongLength(name: string, field: Field, text: string): string | null {
  const length = [...text].length;
  if (field.shortest !== null && length < field.shortest) return `${name} must have at least ${field.shortest} characters.`;
  if (field.longest !== null && length > field.longest) return `${name} must have at most ${field.longest} characters.`;
  return null;
}

function isJson(text: string): boolean {
  try {
    JSON.parse(text);
    return true;
  } catch {
    return false;
  }
}

import { useRef, useState } from "preact/hooks";
import { useKeys } from "../hooks.ts";
import { visible } from "../words.ts";

interface FiltersProps {
  path: string;
  search: string;
  kinds: readonly (readonly [string, readonly string[]])[];
  placeholder: string;
  onGo: (to: string) => void;
}

/** Chips for what is asked; the address that says the same stands beside them. */
export function Filters({ path, search, kinds, placeholder, onGo }: FiltersProps) {
  const known = new URLSearchParams(search);
  const field = useRef<HTMLInputElement>(null);
  const timer = useRef<ReturnType<typeof setTimeout>>();
  const [adding, setAdding] = useState<string | null>(null);
  useKeys({ "/": () => field.current?.focus() });
  const set = (name: string, value: string) => {
    const after = new URLSearchParams(search);
    if (value === "") after.delete(name);
    else after.set(name, value);
    const query = after.toString();
    setAdding(null);
    onGo(query ? `${path}?${query}` : path);
  };
  const typed = (text: string) => {
    clearTimeout(timer.current);
    timer.current = setTimeout(() => set("text", text), 200);
  };
  return (
    <div class="filters">
      <input
        ref={field}
        class="field"
        type="search"
        placeholder={placeholder}
        aria-label={placeholder}
        defaultValue={known.get("text") ?? ""}
        onInput={(event) => typed(event.currentTarget.value)}
      />
      {kinds.map(([name, values]) => {
        const value = known.get(name);
        if (value !== null)
          return (
            <span key={name} class="chip">
              <span class="k">{name}</span>
              <span class="cut">{visible(value)}</span>
              <button type="button" class="x" aria-label={`Take out ${name}`} onClick={() => set(name, "")}>
                ×
              </button>
            </span>
          );
        if (adding === name)
          return (
            <select key={name} class="field pick" aria-label={name} autoFocus onChange={(event) => set(name, event.currentTarget.value)} onBlur={() => setAdding(null)}>
              <option value="">{name}…</option>
              {values.map((each) => (
                <option key={each} value={each}>
                  {visible(each)}
                </option>
              ))}
            </select>
          );
        return values.length > 0 ? (
          <button key={name} type="button" class="chip add" onClick={() => setAdding(name)}>
            + {name}
          </button>
        ) : null;
      })}
      <span class="dim mono address cut">
        {path}
        {search && `?${search}`}
      </span>
    </div>
  );
}

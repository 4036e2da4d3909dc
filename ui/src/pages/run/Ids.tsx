import { useEffect, useState } from "preact/hooks";

/** What other programs call it: a press copies it whole. */
export function Ids({ ids }: { ids: readonly (readonly [string, string])[] }) {
  const [copied, setCopied] = useState("");
  useEffect(() => {
    const timer = setTimeout(() => setCopied(""), 2000);
    return () => clearTimeout(timer);
  }, [copied]);
  const copy = async (name: string, id: string) => {
    await navigator.clipboard.writeText(id);
    setCopied(name);
  };
  return (
    <>
      {ids.map(([name, id]) => (
        <button key={name} type="button" class="id" title={`Copy ${name} ${id}`} onClick={() => copy(name, id)}>
          {name} <span class="fig">{id.length > 16 ? `${id.slice(0, 8)}…${id.slice(-6)}` : id}</span>
        </button>
      ))}
      <span class="dim" aria-live="polite">
        {copied && `${copied} copied`}
      </span>
    </>
  );
}

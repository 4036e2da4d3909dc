import { Icon } from "./Icon.tsx";

/** The lines that lead to a name in a tree: one step a level, its own last. */
export function Steps({ guide }: { guide: readonly boolean[] }) {
  return (
    <>
      {guide.map((more, at) => {
        const own = at === guide.length - 1;
        const turn = own ? (more ? "in turn" : "in turn last") : more ? "in" : "in none";
        return <span key={at} class={turn} />;
      })}
    </>
  );
}

export function Twist({ open, name, onClick }: { open: boolean; name: string; onClick: () => void }) {
  return (
    <button
      type="button"
      class="tw"
      tabIndex={-1}
      aria-label={`${open ? "Fold" : "Unfold"} ${name}`}
      onClick={(event) => {
        event.stopPropagation();
        onClick();
      }}
    >
      <Icon name={open ? "down" : "right"} />
    </button>
  );
}

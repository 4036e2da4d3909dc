import type { ComponentChildren } from "preact";
import { useEffect, useId, useRef, useState } from "preact/hooks";
import { sentence } from "../api.ts";
import "./Confirm.css";

interface Asking {
  title: string;
  act: string;
  leave: string;
  children: ComponentChildren;
  onAct: () => Promise<unknown>;
  onClose: () => void;
  ready?: boolean;
  pending?: boolean;
}

/** A dialog that says what will come of it; both buttons are verbs, and what is refused is said where it was asked. Enter while it is
 * `pending` whether it is `ready` counts when that is known. */
export function Confirm({ title, act, leave, children, onAct, onClose, ready = true, pending = false }: Asking) {
  const dialog = useRef<HTMLDialogElement>(null);
  const name = useId();
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState<string | null>(null);
  useEffect(() => {
    dialog.current?.showModal();
  }, []);
  const [waits, setWaits] = useState(false);
  useEffect(() => {
    if (!waits || pending) return;
    setWaits(false);
    void send();
  }, [waits, pending]);
  const send = async (event?: Event) => {
    event?.preventDefault();
    if (pending) setWaits(true);
    if (busy || !ready) return;
    setBusy(true);
    try {
      await onAct();
      onClose();
    } catch (failed) {
      setError(sentence(failed));
      setBusy(false);
    }
  };
  return (
    <dialog ref={dialog} aria-labelledby={name} onClose={onClose}>
      <form onSubmit={send} onInput={() => setError(null)}>
        <div class="in">
          <h2 id={name}>{title}</h2>
          {children}
          {error !== null && (
            <p class="said-no" role="alert">
              {error}
            </p>
          )}
        </div>
        <div class="foot">
          <button type="button" class="btn tall" onClick={onClose}>
            {leave}
          </button>
          <button type="submit" class="btn tall main-act" disabled={busy || !(ready || pending)}>
            {act}
          </button>
        </div>
      </form>
    </dialog>
  );
}

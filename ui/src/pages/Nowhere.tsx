import { Link } from "wouter-preact";
import { Page } from "../parts/Frame.tsx";

export function Nowhere() {
  return (
    <Page name="No such page" looks="nothing">
      <div class="head">
        <h1>No such page</h1>
      </div>
      <div class="empty">
        <p>
          Nothing is shown at this address. <Link href="/">See what runs now</Link>.
        </p>
      </div>
    </Page>
  );
}

// Draw only the rows that can be seen; every row has the same height.
import { elementScroll, observeElementOffset, observeElementRect, Virtualizer, type VirtualItem } from "@tanstack/virtual-core";
import type { RefObject } from "preact";
import { useLayoutEffect, useReducer, useState } from "preact/hooks";

interface Virtual {
  items: VirtualItem[];
  height: number;
  show: (index: number) => void;
}

export function useVirtual(count: number, size: number, scroller: RefObject<HTMLElement>, above = 0): Virtual {
  const [, redraw] = useReducer((turn: number) => turn + 1, 0);
  const [virtual] = useState(
    () =>
      new Virtualizer<HTMLElement, Element>({
        count,
        getScrollElement: () => scroller.current,
        estimateSize: () => size,
        scrollToFn: elementScroll,
        observeElementRect,
        observeElementOffset,
      }),
  );
  virtual.setOptions({
    count,
    getScrollElement: () => scroller.current,
    estimateSize: () => size,
    scrollToFn: elementScroll,
    observeElementRect,
    observeElementOffset,
    overscan: 12,
    scrollMargin: above,
    scrollPaddingStart: above,
    initialRect: { width: 1000, height: 900 },
    onChange: () => redraw(null as never),
  });
  useLayoutEffect(() => virtual._didMount(), [virtual]);
  useLayoutEffect(() => virtual._willUpdate());
  useLayoutEffect(() => virtual.measure(), [virtual, size]);
  return { items: virtual.getVirtualItems(), height: virtual.getTotalSize(), show: (index) => virtual.scrollToIndex(index, { align: "auto" }) };
}

import { defineConfig } from "vite";

// One script and one style sheet under names that stay, so that what is committed can be compared with what is built.
export default defineConfig({
  base: "/assets/",
  oxc: { jsx: { runtime: "automatic", importSource: "preact" } },
  build: {
    target: "es2022",
    modulePreload: false,
    assetsInlineLimit: 0,
    assetsDir: "",
    cssCodeSplit: false,
    rollupOptions: {
      output: { entryFileNames: "app.js", chunkFileNames: "[name].js", assetFileNames: "[name][extname]" },
    },
  },
});

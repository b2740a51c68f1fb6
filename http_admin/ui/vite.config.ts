import { loadEnv } from 'vite';
import { defineConfig } from 'vitest/config';

// `npm run dev` serves the sources and hands /api to a running broker.
export default defineConfig(({ mode }) => ({
  build: {
    target: 'es2022',
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
    chunkSizeWarningLimit: 400,
  },
  server: {
    host: '127.0.0.1',
    proxy: { '/api': loadEnv(mode, '.', 'LEVERET_').LEVERET_URL ?? 'http://127.0.0.1:15672' },
  },
  test: { include: ['test/**/*.test.ts'], environment: 'node' },
}));

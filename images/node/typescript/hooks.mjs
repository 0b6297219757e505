// The loader thread's part: TypeScript in programs that are ES modules. See register.cjs.
import { createRequire } from 'node:module';
import { fileURLToPath } from 'node:url';

const { strip, typescript } = createRequire(import.meta.url)('./register.cjs');

// './x.js' may mean './x.ts', and './x' './x.ts' or './x/index.ts': only where a TypeScript file asks for it.
export async function resolve(specifier, context, next) {
  try {
    return await next(specifier, context);
  } catch (err) {
    const path = new URL(context.parentURL ?? 'none:').pathname;
    const missing = err.code === 'ERR_MODULE_NOT_FOUND' || err.code === 'ERR_UNSUPPORTED_DIR_IMPORT';
    if (!missing || !typescript.test(path) || !/^(\.{1,2}|file:)?\//.test(specifier)) throw err;
    const others = /\.[cm]?js$/.test(specifier) ? [specifier.replace(/js$/, 'ts')] : [specifier + '.ts', specifier + '/index.ts'];
    for (const other of others) {
      try {
        return await next(other, context);
      } catch {
        // the first error names what was asked for
      }
    }
    throw err;
  }
}

export async function load(url, context, next) {
  if (!url.startsWith('file:') || !typescript.test(new URL(url).pathname)) return next(url, context);
  if (url.endsWith('.cts')) return { format: 'commonjs', shortCircuit: true, source: strip(fileURLToPath(url), ['typescript', 'imports']) };
  return { format: 'module', shortCircuit: true, source: strip(fileURLToPath(url), ['typescript']) };
}

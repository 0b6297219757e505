'use strict';
// Lets node run TypeScript files. NODE_OPTIONS of the image preloads this file, so it costs every start of node:
// it loads nothing until a TypeScript file is met. Types are taken out by sucrase, which keeps every line where it
// was, so stack traces are right without source maps. Nothing is checked: `node` says what is wrong when it happens.
//
// Most programs run as CommonJS, whose hooks are a function call. An ES module needs a loader thread, which node
// starts for `module.register`: only where the first file is one.
const Module = require('node:module');
const path = require('node:path');

const typescript = /\.[cm]?ts$/;
const main = process.argv[1] && path.resolve(process.argv[1]);

let transform;
function strip(filename, transforms) {
  transform ??= require('sucrase').transform;
  const source = require('node:fs').readFileSync(filename, 'utf8');
  try {
    return transform(source, { transforms, filePath: filename, disableESTransforms: true, preserveDynamicImport: true }).code;
  } catch (err) {
    err.stack = `${filename}\nSyntaxError: ${err.message}`; // where in sucrase it was seen helps nobody
    throw err;
  }
}

let hooked = false;
function hookESM() {
  if (!hooked) Module.register('./hooks.mjs', require('node:url').pathToFileURL(__filename));
  hooked = true;
}

// Whether the file may only run as an ES module: it awaits outside of functions, or asks for import.meta.
function needsESM(code) {
  if (!/\bawait\b|\bimport\.meta\b/.test(code)) return false;
  try {
    require('node:vm').compileFunction(code, ['exports', 'require', 'module', '__filename', '__dirname']);
    return false;
  } catch {
    return true; // or it is wrong as either: then the loader of ES modules says so
  }
}

function load(module, filename) {
  const code = strip(filename, ['typescript', 'imports']);
  if (filename === main && needsESM(code)) {
    hookESM();
    import(require('node:url').pathToFileURL(filename).href).catch((err) => process.nextTick(() => { throw err; }));
    return;
  }
  module._compile(code, filename);
}

// TypeScript's own habit: a file imports './x.js' and means './x.ts'.
const resolve = Module._resolveFilename;
Module._resolveFilename = function (request, parent, ...rest) {
  try {
    return resolve.call(this, request, parent, ...rest);
  } catch (err) {
    if (err.code !== 'MODULE_NOT_FOUND' || !typescript.test(parent?.filename ?? '') || !/^\.{0,2}\/.*\.[cm]?js$/.test(request)) throw err;
    return resolve.call(this, request.replace(/js$/, 'ts'), parent, ...rest);
  }
};

for (const extension of ['.ts', '.cts', '.mts']) Module._extensions[extension] = load;

// The package's type decides as it does for .js. Worker threads come here too, and inherit the hooks.
if (main && typescript.test(main) && require('node:worker_threads').isMainThread && isESM(main)) hookESM();

function isESM(filename) {
  if (!filename.endsWith('.ts')) return filename.endsWith('.mts');
  for (let dir = path.dirname(filename); ; dir = path.dirname(dir)) {
    try {
      return JSON.parse(require('node:fs').readFileSync(path.join(dir, 'package.json'), 'utf8')).type === 'module';
    } catch (err) {
      if (err.code !== 'ENOENT' || dir === path.dirname(dir)) return false;
    }
  }
}

module.exports = { strip, typescript };

import { double } from './double.js';

const text: string = await Promise.resolve('doubled');
console.log(text, double(21), new URL(import.meta.url).protocol);

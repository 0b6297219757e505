import { Kind, words, type Word } from './words.js';

export interface Evaluator { evaluate(text: string): number }

export class Stack<T extends number> implements Evaluator {
  constructor(private readonly stack: T[] = []) {}

  evaluate(text: string): number {
    words(text).forEach((word: Word) => this.take(word));
    if (this.stack.length !== 1) throw new Error(`${this.stack.length} values are left of ${text}`);
    return this.stack[0] as number;
  }

  private take(word: Word): void {
    if (word.kind === Kind.Number) {
      this.stack.push(word.value as T);
      return;
    }
    const right = this.stack.pop()!;
    this.stack.push(word.apply(this.stack.pop()!, right) as T);
  }
}

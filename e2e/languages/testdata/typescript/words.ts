export enum Kind { Number, Operator }

export type Word = { kind: Kind.Number; value: number } | { kind: Kind.Operator; apply: (a: number, b: number) => number };

const operators: Record<string, (a: number, b: number) => number> = { '+': (a, b) => a + b, '-': (a, b) => a - b, '*': (a, b) => a * b };

export function words(text: string): Word[] {
  return text.split(/\s+/).map((word): Word => (word in operators
    ? { kind: Kind.Operator, apply: operators[word]! }
    : { kind: Kind.Number, value: Number(word) }));
}

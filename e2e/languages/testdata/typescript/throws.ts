interface Unused {
  a: string;
}

throw new Error('thrown in line 5');

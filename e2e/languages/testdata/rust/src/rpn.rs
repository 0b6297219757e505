//! Reverse Polish notation.

use std::collections::HashMap;

type Operator = fn(i64, i64) -> i64;

pub fn evaluate(text: &str) -> Result<i64, String> {
    let operators: HashMap<&str, Operator> =
        HashMap::from([("+", (|a, b| a + b) as Operator), ("-", |a, b| a - b), ("*", |a, b| a * b)]);
    let mut stack = Vec::new();
    for word in text.split_whitespace() {
        let value = match operators.get(word) {
            Some(apply) => {
                let (right, left) = (stack.pop(), stack.pop());
                apply(left.ok_or("too few values")?, right.ok_or("too few values")?)
            }
            None => word.parse().map_err(|err| format!("{word}: {err}"))?,
        };
        stack.push(value);
    }
    match stack[..] {
        [answer] => Ok(answer),
        _ => Err(format!("{} values are left of {text:?}", stack.len())),
    }
}

#[cfg(test)]
mod tests {
    use super::evaluate;

    #[test]
    fn good() {
        assert_eq!(evaluate("1 2 +"), Ok(3));
    }

    #[test]
    fn bad() {
        assert_eq!(evaluate("1 2 +"), Ok(4));
    }
}

mod rpn;

use std::process::ExitCode;

fn main() -> ExitCode {
    let text = std::env::args().nth(1).unwrap_or_default();
    match rpn::evaluate(&text) {
        Ok(answer) => {
            println!("{text} = {answer}");
            ExitCode::SUCCESS
        }
        Err(why) => {
            eprintln!("{why}");
            ExitCode::from(3)
        }
    }
}

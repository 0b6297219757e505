package main

// escapes finds ~. and its like at the beginning of a line, as ssh does (ssh(1),
// "ESCAPE CHARACTERS"), in keys that come in any pieces. A ~ there is held back
// until the next key says what it means.
type escapes struct {
	inLine bool // the last key did not end a line
	tilde  bool // a ~ is held back
}

const escapesHelp = "at the beginning of a line (press Enter first): ~. detaches, the program goes on; ~~ is one ~; ~? shows this"

// feed returns the keys that go to the program, and whether help or to leave was
// asked for; what is behind the latter is dropped.
func (e *escapes) feed(keys []byte) (pass []byte, help, leave bool) {
	for _, key := range keys {
		if e.tilde {
			e.tilde = false
			switch key {
			case '.':
				return pass, help, true
			case '?':
				help = true
				continue
			case '~': // one of the two
			default:
				pass = append(pass, '~')
			}
		} else if key == '~' && !e.inLine {
			e.tilde = true
			continue
		}
		pass = append(pass, key)
		e.inLine = key != '\r' && key != '\n'
	}
	return pass, help, false
}

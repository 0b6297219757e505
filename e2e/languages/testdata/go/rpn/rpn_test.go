package rpn

import "testing"

func TestGood(t *testing.T) {
	if got, err := Evaluate("1 2 +"); got != 3 || err != nil {
		t.Errorf("got %d, %v", got, err)
	}
}

func TestBad(t *testing.T) {
	if got, _ := Evaluate("1 2 +"); got != 4 {
		t.Errorf("got %d", got)
	}
}

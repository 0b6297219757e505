package fault

import (
	"errors"
	"fmt"
	"strings"
	"testing"
)

func TestFromKeepsAFaultInTheChain(t *testing.T) {
	inner := Param("vcpus", "vcpus must be 1 to %d", 8)
	got := From(fmt.Errorf("create sandbox: %w", inner))
	if got != inner {
		t.Fatalf("From lost the fault: %v", got)
	}
	if got.Kind() != Invalid || got.Param != "vcpus" {
		t.Fatalf("kind %s param %s", got.Kind(), got.Param)
	}
}

func TestFromHidesWhatIsNotAFault(t *testing.T) {
	cause := errors.New("open jail: secret host detail")
	got := From(cause)
	if got.Code != InternalError || strings.Contains(got.Message, "secret") {
		t.Fatalf("message shows the cause: %q", got.Message)
	}
	if !errors.Is(got, cause) {
		t.Fatal("the cause is lost for the log")
	}
}

func TestUnknownCodeIsInternal(t *testing.T) {
	if kind := (&Error{Code: "made_up"}).Kind(); kind != Internal {
		t.Fatalf("kind %s", kind)
	}
}

package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"testing"

	"github.com/microvmd/microvm/internal/posture"
)

// TestProbeChildIsReachable: the arguments that posture.KVM starts this program
// with lead to the probe, and to nothing else.
func TestProbeChildIsReachable(t *testing.T) {
	root, _ := newRootCommand()
	var out bytes.Buffer
	root.SetOut(&out)
	root.SetArgs(posture.ChildArgs())
	if err := root.ExecuteContext(t.Context()); err != nil {
		t.Fatal(err)
	}
	var figures map[string]any
	if err := json.Unmarshal(out.Bytes(), &figures); err != nil || figures["fault"] == nil {
		t.Errorf("child printed %q, %v", out.String(), err)
	}
}

func TestDoctorExitCodes(t *testing.T) {
	for status, want := range map[posture.Status]int{
		posture.OK: 0, posture.Warn: 0, posture.Unknown: exitHostUnknown, posture.Fail: exitHostFails,
	} {
		for _, format := range []string{"table", "json"} {
			var out bytes.Buffer
			err := printFindings([]posture.Finding{{ID: "a", Status: posture.OK}, {ID: "b", Status: status, Fix: "do it"}}, format, &out)
			code := 0
			var coded *codeError
			if errors.As(err, &coded) {
				code = coded.code
			}
			if code != want || !silentOrNil(err) || out.Len() == 0 {
				t.Errorf("%s as %s: code %d, want %d; error %v; printed %q", status, format, code, want, err, out.String())
			}
		}
	}
	for verdict, want := range map[posture.Verdict]bool{
		posture.Hardware: true, posture.Emulated: false, posture.Unusable: false, posture.Absent: false, posture.Unproven: false,
	} {
		var out bytes.Buffer
		err := doctorKVM(posture.KVMReport{Verdict: verdict}, "table", &out)
		if (err == nil) != want || out.String() != string(verdict)+"\n" {
			t.Errorf("%s: %v, printed %q", verdict, err, out.String())
		}
	}
}

func silentOrNil(err error) bool { return err == nil || silent(err) }

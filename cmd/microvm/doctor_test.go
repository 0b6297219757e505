package main

import (
	"bytes"
	"errors"
	"testing"

	"github.com/microvmd/microvm/internal/posture"
)

// TestProbeChildIsReachable: the arguments that posture.KVM starts this program
// with name a verb and a flag of it. The probe is not run: a broken KVM would
// hold the test.
func TestProbeChildIsReachable(t *testing.T) {
	root, _ := newRootCommand()
	cmd, rest, err := root.Find(posture.ChildArgs())
	if err != nil || cmd.Name() != "doctor" {
		t.Fatalf("found %v, %v", cmd, err)
	}
	if err := cmd.ParseFlags(rest); err != nil {
		t.Fatal(err)
	}
	if on, err := cmd.Flags().GetBool("kvm-child"); err != nil || !on || cmd.Flags().NArg() != 0 {
		t.Errorf("kvm-child is %v, %v", on, err)
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

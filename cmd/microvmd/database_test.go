package main

import (
	"os"
	"strings"
	"testing"
)

func TestDatabase(t *testing.T) {
	const secret = "postgres://microvm:s3cret@db.example/microvm"
	for _, c := range []struct{ flag, env, want, refused string }{
		{},
		{env: secret, want: secret},
		{flag: "postgres://microvm@db.example/microvm?passfile=/etc/microvm/pgpass", want: "postgres://microvm@db.example/microvm?passfile=/etc/microvm/pgpass"},
		{flag: "postgres://other.example/microvm", env: secret, want: "postgres://other.example/microvm"},
		{flag: secret, refused: "command line"},
		{flag: "postgres://db.example/microvm?password=s3cret", refused: "command line"},
		{flag: "postgres://db.example/microvm?user=u&sslpassword=s3cret", refused: "command line"},
		{flag: "postgres://microvm:s3cret/x@db.example/microvm", refused: "no valid URL"},
	} {
		t.Setenv(databaseVariable, c.env)
		got, err := database(c.flag)
		if got != c.want {
			t.Errorf("%+v: got %q", c, got)
		}
		if refused := err != nil; refused != (c.refused != "") || refused && !strings.Contains(err.Error(), c.refused) {
			t.Errorf("%+v: %v", c, err)
		}
		if err != nil && strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%+v: the error shows the password: %v", c, err)
		}
		if left, ok := os.LookupEnv(databaseVariable); ok {
			t.Errorf("%+v: left %q in the environment", c, left)
		}
	}
}

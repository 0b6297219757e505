package main

import (
	"os"
	"strings"
	"testing"
)

func TestDatabase(t *testing.T) {
	const secret = "postgres://microvm:s3cret@db.example/microvm"
	const passfile = "postgres://microvm@db.example/microvm?passfile=/etc/microvm/pgpass"
	for _, c := range []struct{ flag, env, file, want, refused string }{
		{},
		{env: secret, want: secret},
		{flag: passfile, want: passfile},
		{file: passfile, want: passfile},
		{file: passfile, env: secret, want: secret},
		{flag: "postgres://other.example/microvm", env: secret, file: passfile, want: "postgres://other.example/microvm"},
		{flag: secret, refused: "command line"},
		{file: secret, refused: ":1:11: database holds a password"},
		{file: secret, flag: passfile, refused: ":1:11: database holds a password"},
		{flag: "postgres://db.example/microvm?password=s3cret", refused: "command line"},
		{flag: "postgres://db.example/microvm?user=u&sslpassword=s3cret", refused: "command line"},
		{flag: "postgres://microvm:s3cret/x@db.example/microvm", refused: "no valid URL"},
	} {
		t.Setenv("MICROVM_DATABASE", c.env)
		args := []string{"--config", ""}
		if c.file != "" {
			args[1] = configuration(t, "database: "+c.file)
		}
		if c.flag != "" {
			args = append(args, "--database", c.flag)
		}
		got, err := load(t, args...)
		if refused := err != nil; refused != (c.refused != "") || refused && !strings.Contains(err.Error(), c.refused) {
			t.Errorf("%+v: %v", c, err)
		}
		if err != nil && strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%+v: the error shows the password: %v", c, err)
		}
		if err == nil && got.Database != c.want {
			t.Errorf("%+v: got %q", c, got.Database)
		}
		if left, ok := os.LookupEnv("MICROVM_DATABASE"); ok {
			t.Errorf("%+v: left %q in the environment", c, left)
		}
	}
}

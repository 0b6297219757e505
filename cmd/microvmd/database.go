package main

import (
	"errors"
	"net/url"
	"os"
)

// databaseVariable may hold the database's URL with its password.
const databaseVariable = "MICROVM_DATABASE"

// database returns the flag's value or, where it is empty, the environment's,
// which it takes out so that no program that the daemon starts gets it. A password
// on the command line is refused: every user of the host can read it there. The
// error holds nothing of it.
func database(flag string) (string, error) {
	given := os.Getenv(databaseVariable)
	if err := os.Unsetenv(databaseVariable); err != nil {
		return "", err
	}
	if flag == "" {
		return given, nil
	}
	u, err := url.Parse(flag)
	if err != nil {
		return "", errors.New("database is no valid URL")
	}
	_, inUser := u.User.Password()
	if inUser || u.Query().Has("password") || u.Query().Has("sslpassword") {
		return "", errors.New("database holds a password, which every user of this host can read on a command line;" +
			" give the whole URL in " + databaseVariable + ", or name a file with the password in the URL: ?passfile=PATH")
	}
	return flag, nil
}

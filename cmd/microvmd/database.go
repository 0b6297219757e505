package main

import (
	"errors"
	"net/url"
)

// noPassword refuses a database's URL with a password on the command line, where
// every user of the host can read it, and in the file, which is made to be shown
// around. The error holds nothing of it.
func noPassword(database string) error {
	u, err := url.Parse(database)
	if err != nil {
		return errors.New("database is no valid URL")
	}
	_, inUser := u.User.Password()
	if inUser || u.Query().Has("password") || u.Query().Has("sslpassword") {
		return errors.New("database holds a password, which belongs on no command line and in no configuration file;" +
			" give the whole URL in " + variables["database"] + ", or name a file with the password in the URL: ?passfile=PATH")
	}
	return nil
}

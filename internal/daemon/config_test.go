package daemon

import (
	"strings"
	"testing"
)

func TestDatabaseSetting(t *testing.T) {
	c := Defaults(2, 4096)
	c.Limits.MaxMemMiB = 1024
	if err := c.check(); err != nil {
		t.Fatal(err)
	}
	if got := c.database(); got != c.StateDir+"/microvm.db" {
		t.Errorf("the default is %s", got)
	}
	c.Database = "postgresql://microvm:s3cret@db.example/microvm"
	if err := c.check(); err != nil || c.database() != c.Database {
		t.Errorf("%s, %v", c.database(), err)
	}
	for _, wrong := range []string{"/var/lib/other.db", "mysql://microvm:s3cret@db.example/microvm", "user=microvm password=s3cret"} {
		c.Database = wrong
		err := c.check()
		if err == nil || !strings.Contains(err.Error(), "database must be a postgres:// URL") || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%q: %v", wrong, err)
		}
	}
}

package httpapi

import (
	"bytes"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/microvmd/microvm/internal/fault"
	"github.com/microvmd/microvm/internal/image"
)

func asTar(r *http.Request) { r.Header.Set("Content-Type", tarType) }

func TestImportImage(t *testing.T) {
	s := start(t)
	query := url.Values{
		"name": {"mine"}, "user": {"user"}, "workdir": {"/srv"}, "env": {`{"A":"b","LANG":"C"}`},
		"language": {"python"}, "language_version": {"3"}, "replace": {"true"},
	}
	tree := strings.Repeat("\x00\xff", bodyLimit) // more than a JSON body may have
	got := s.do(t, "POST", "/v1/images?"+query.Encode(), tree, asTar)
	if got.StatusCode != http.StatusCreated || !bytes.Contains(got.body, []byte(`"source":"imported"`)) {
		t.Fatalf("%d %s", got.StatusCode, got.body)
	}
	spec := s.world.tree
	if spec.ID != "mine" || spec.User != "user" || spec.Workdir != "/srv" || spec.Env["A"] != "b" || len(spec.Env) != 2 ||
		spec.Language != "python" || spec.LanguageVersion != "3" || !spec.Replace || string(s.world.treeText) != tree {
		t.Errorf("it came as %+v, %d bytes", spec, len(s.world.treeText))
	}
	got = s.do(t, "POST", "/v1/images?name=mine", "x", func(r *http.Request) { r.Header.Set("Content-Type", gzipType) })
	if got.StatusCode != http.StatusOK || s.world.tree.Replace || s.world.tree.User != "" || s.world.tree.Env != nil {
		t.Errorf("again: %d %s, as %+v", got.StatusCode, got.body, s.world.tree)
	}
	for query, param := range map[string]string{
		"": "name", "name=": "name", "name=..": "name", "name=a%2Fb": "name", "name=a&name=b": "name", "name=a&path=b": "path",
		"name=a&env=x": "env", "name=a&env=[]": "env", `name=a&env={"A":1}`: "env", `name=a&env={"A":null}`: "env",
		`name=a&env={"A":"1","A":"2"}`: "env", `name=a&env={}{}`: "env", `name=a&env={"A":"1"`: "env", "name=a&replace=yes": "replace",
		"name=a&user=" + strings.Repeat("u", 65): "user",
	} {
		got := s.do(t, "POST", "/v1/images?"+query, "x", asTar)
		if got.StatusCode != http.StatusBadRequest || value(got.fault(t).Param) != param {
			t.Errorf("%s: %d %s", query, got.StatusCode, got.body)
		}
	}
	if got := s.do(t, "POST", "/v1/images?name=a", "{}"); got.StatusCode != http.StatusBadRequest { // as JSON
		t.Errorf("%d %s", got.StatusCode, got.body)
	}
}

func TestDeleteImage(t *testing.T) {
	s := start(t)
	got := s.do(t, "DELETE", "/v1/images/mine", "")
	if got.StatusCode != http.StatusOK || !bytes.Contains(got.body, []byte(`"id":"mine"`)) {
		t.Errorf("%d %s", got.StatusCode, got.body)
	}
	for cause, status := range map[fault.Code]int{
		fault.ImageInUse: http.StatusConflict, fault.ImageNotFound: http.StatusNotFound, fault.Forbidden: http.StatusForbidden,
	} {
		s.world.err = fault.Wrap(&image.InUse{}, cause, "what to do next")
		if got := s.do(t, "DELETE", "/v1/images/mine", ""); got.StatusCode != status {
			t.Errorf("%s: %d %s", cause, got.StatusCode, got.body)
		}
	}
}

// Package api holds the contract of the HTTP API, openapi.yaml, as data. The
// settings of the code generators lie beside it; generate.sh runs them.
package api

import _ "embed"

//go:generate ./generate.sh

// Specification is openapi.yaml, an OpenAPI 3.1 document.
//
//go:embed openapi.yaml
var Specification []byte

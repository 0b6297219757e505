// Command server answers itself once: most of the standard library is below it.
package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
)

func main() {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(map[string]int{"answer": 42})
	}))
	defer server.Close()
	reply, err := http.Get(server.URL)
	if err != nil {
		panic(err)
	}
	defer reply.Body.Close()
	var got map[string]int
	if err := json.NewDecoder(reply.Body).Decode(&got); err != nil {
		panic(err)
	}
	fmt.Println("served", got["answer"])
}

module github.com/microvmd/microvm

go 1.26

require (
	github.com/oklog/ulid/v2 v2.1.2 // indirect
	pgregory.net/rapid v1.3.0 // indirect
)

module github.com/microvmd/microvm/sdk/go

go 1.26.0

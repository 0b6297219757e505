// Package archtest holds the project's rules about its own shape, as tests:
// who may import whom, and that every package says what it is. It has no code
// that runs.
package archtest

package secret

import (
	"crypto/aes"
	"crypto/cipher"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"slices"
	"strings"
)

const (
	// KeySize is the bytes of a key: AES-256.
	KeySize = 32
	// KeyFile is the name of the file that holds a daemon's key.
	KeyFile = "secret.key"
)

// Key seals environments for the store with AES-256-GCM and a random nonce, which
// is good for 2^32 of them (NIST SP 800-38D, 8.3). It is safe for concurrent use.
type Key struct {
	aead cipher.AEAD // its nonces are its own
	path string      // of the file that holds it, for what errors say
}

func newKey(raw []byte, path string) (*Key, error) {
	block, err := aes.NewCipher(raw)
	if err != nil {
		return nil, err
	}
	aead, err := cipher.NewGCMWithRandomNonce(block)
	if err != nil {
		return nil, err
	}
	return &Key{aead: aead, path: path}, nil
}

const (
	sealedPrefix = "v1." // the form of what follows
	// sealedMost is the longest text that Seal makes: each entry has a '=' and
	// an end, and GCM adds nonce and tag.
	sealedMost = len(sealedPrefix) + (MaxBytes+2*MaxEntries+12+16)*4/3 + 2
	// purpose keeps what is sealed here apart from all that this key may seal
	// one day.
	purpose = "sandbox environment\x00"
)

// encoding refuses text that differs from what it makes.
var encoding = base64.RawURLEncoding.Strict()

// Seal returns env as text that only Open with the same key and id turns back. An
// empty one is "". One that Check refuses is an error.
func (k *Key) Seal(env Env, id string) (string, error) {
	if len(env) == 0 {
		return "", nil
	}
	if err := env.Check("env"); err != nil {
		return "", fmt.Errorf("seal environment: %w", err)
	}
	// As the kernel has it: names hold no '=' and nothing holds a NUL, so this
	// can be read back, byte by byte.
	plain := make([]byte, 0, MaxBytes+2*MaxEntries)
	for _, name := range slices.Sorted(maps.Keys(env)) {
		plain = append(append(append(append(plain, name...), '='), env[name]...), 0)
	}
	sealed := k.aead.Seal(nil, nil, plain, []byte(purpose+id)) //nolint:gosec // G407: no nonce is given: it makes its own
	return sealedPrefix + encoding.EncodeToString(sealed), nil
}

// Open returns what Seal was given. Its errors say which key did not fit and
// nothing of the text.
func (k *Key) Open(sealed, id string) (Env, error) {
	if sealed == "" {
		return nil, nil
	}
	body, ours := strings.CutPrefix(sealed, sealedPrefix)
	if !ours || len(sealed) > sealedMost {
		return nil, errors.New("open environment: it is not sealed as this release does; start the release that wrote it, or a newer one")
	}
	data, err := encoding.DecodeString(body)
	var plain []byte
	if err == nil {
		plain, err = k.aead.Open(nil, nil, data, []byte(purpose+id))
	}
	if err != nil {
		return nil, fmt.Errorf("open environment: %s is not the key that sealed it for %s, or it is damaged; put the key back from a backup and restart the daemon, or create another sandbox", k.path, id)
	}
	env := Env{}
	for entry := range strings.SplitSeq(strings.TrimSuffix(string(plain), "\x00"), "\x00") {
		name, value, _ := strings.Cut(entry, "=")
		env[name] = value
	}
	if err := env.Check("env"); err != nil { // the key's holder sealed it all the same
		return nil, fmt.Errorf("open environment: %w", err)
	}
	return env, nil
}

// Format implements fmt.Formatter: whatever the verb is.
func (Key) Format(to fmt.State, _ rune) { _, _ = io.WriteString(to, redacted) }

// LogValue implements slog.LogValuer.
func (Key) LogValue() slog.Value { return slog.StringValue(redacted) }

// MarshalText implements encoding.TextMarshaler, for all that encodes.
func (Key) MarshalText() ([]byte, error) { return []byte(redacted), nil }

package firecracker

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"
)

const (
	apiHeader  = 8 << 10          // bytes of a reply's header
	apiBody    = 64 << 10         // bytes of a reply's body
	apiMessage = 256              // bytes of a fault_message in an error
	apiWait    = 60 * time.Second // of one call whose context has no deadline
)

// api is the VMM's API. One client serves one caller, one request at a time;
// nothing is believed of a reply but that it is small and in time. Bodies never
// hold a secret: Firecracker may log them.
type api struct {
	http *http.Client
}

// newAPI makes a client over dial, which connects to the API's socket.
func newAPI(dial func(context.Context) (net.Conn, error)) *api {
	return &api{http: &http.Client{
		Transport: noUpgrade{&http.Transport{
			DialContext:            func(ctx context.Context, _, _ string) (net.Conn, error) { return dial(ctx) },
			MaxConnsPerHost:        1,
			MaxResponseHeaderBytes: apiHeader,
			DisableCompression:     true,
		}},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
}

func (a *api) close() { a.http.CloseIdleConnections() }

// noUpgrade refuses "101 Switching Protocols": net/http hands such a connection
// over as the reply's body, and the request's context bounds it no more.
type noUpgrade struct{ *http.Transport }

// RoundTrip implements http.RoundTripper.
func (t noUpgrade) RoundTrip(request *http.Request) (*http.Response, error) {
	reply, err := t.Transport.RoundTrip(request)
	if err == nil && reply.StatusCode == http.StatusSwitchingProtocols {
		return nil, errors.Join(errors.New("the other side switched protocols"), reply.Body.Close())
	}
	return reply, err
}

// The bodies of the calls, as in Firecracker's src/firecracker/swagger.
type (
	machineConfig struct {
		VCPUs      int  `json:"vcpu_count"`
		MemMiB     int  `json:"mem_size_mib"`
		SMT        bool `json:"smt"`
		TrackDirty bool `json:"track_dirty_pages"`
	}
	bootSource struct {
		Kernel string `json:"kernel_image_path"`
		Initrd string `json:"initrd_path"`
		Args   string `json:"boot_args"`
	}
	drive struct {
		ID       string `json:"drive_id"`
		Path     string `json:"path_on_host"`
		Root     bool   `json:"is_root_device"`
		ReadOnly bool   `json:"is_read_only"`
	}
	vsockDevice struct {
		CID  int    `json:"guest_cid"`
		Path string `json:"uds_path"`
	}
	action struct {
		Type string `json:"action_type"`
	}
	vmState struct {
		State string `json:"state"` // Paused or Resumed
	}
	snapshotCreate struct {
		Type   string `json:"snapshot_type"`
		State  string `json:"snapshot_path"`
		Memory string `json:"mem_file_path"`
	}
	snapshotLoad struct {
		State  string     `json:"snapshot_path"`
		Memory memBackend `json:"mem_backend"`
		Resume bool       `json:"resume_vm"`
	}
	memBackend struct {
		Type string `json:"backend_type"`
		Path string `json:"backend_path"`
	}
	instanceInfo struct {
		ID    string `json:"id"`
		State string `json:"state"`
	}
)

// States that PATCH /vm takes.
const (
	paused  = "Paused"
	resumed = "Resumed"
)

// put sends one PUT and wants 204.
func (a *api) put(ctx context.Context, path string, body any) error {
	return a.send(ctx, http.MethodPut, path, body)
}

// patch sends one PATCH and wants 204.
func (a *api) patch(ctx context.Context, path string, body any) error {
	return a.send(ctx, http.MethodPatch, path, body)
}

func (a *api) send(ctx context.Context, method, path string, body any) error {
	encoded, err := json.Marshal(body)
	if err != nil {
		return err
	}
	_, err = a.call(ctx, method, path, encoded, http.StatusNoContent)
	return err
}

// info asks who answers. It says little, but only a VMM that is up says it.
func (a *api) info(ctx context.Context) (instanceInfo, error) {
	var info instanceInfo
	data, err := a.call(ctx, http.MethodGet, "/", nil, http.StatusOK)
	if err == nil {
		err = json.Unmarshal(data, &info)
	}
	return info, err
}

func (a *api) call(ctx context.Context, method, path string, body []byte, want int) ([]byte, error) {
	if _, bounded := ctx.Deadline(); !bounded {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, apiWait)
		defer cancel()
	}
	request, err := http.NewRequestWithContext(ctx, method, "http://vmm"+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	request.Header.Set("Content-Type", "application/json")
	reply, err := a.http.Do(request)
	if err != nil {
		return nil, err
	}
	defer func() { _ = reply.Body.Close() }()
	data, err := io.ReadAll(io.LimitReader(reply.Body, apiBody+1))
	if err != nil {
		return nil, fmt.Errorf("%s %s: read reply: %w", method, path, err)
	}
	if len(data) > apiBody {
		return nil, fmt.Errorf("%s %s: reply is over %d bytes", method, path, apiBody)
	}
	if reply.StatusCode != want {
		return nil, fmt.Errorf("%s %s: status %d: %w", method, path, reply.StatusCode, faultMessage(data))
	}
	return data, nil
}

// faultMessage is the VMM's own word for what is wrong, quoted and cut.
func faultMessage(data []byte) error {
	var fault struct {
		Message string `json:"fault_message"`
	}
	if err := json.Unmarshal(data, &fault); err != nil || fault.Message == "" {
		return errors.New("no fault_message")
	}
	return fmt.Errorf("%.*q", apiMessage, fault.Message)
}

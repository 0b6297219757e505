// Package guestwire is what the host and the guest agent share: routes, types,
// the frame format of output, and the host's client. It speaks HTTP/1.1 over
// any http.RoundTripper (vsock in production, a Unix socket in tests).
//
// The two sides do not trust each other equally. The agent obeys the host. The
// host believes nothing: the agent can be replaced by hostile root in the
// guest, so Client bounds every reply in time, size, count and form, and turns
// whatever breaks a bound into ErrProtocol.
package guestwire

import "fmt"

const (
	// Protocol is the number that the hello carries. The host ends a sandbox
	// whose agent says another.
	Protocol = 3

	// AgentPort is the vsock port on which the agent listens.
	AgentPort = 1024

	// HelloPort is the vsock port on the host (CID 2) to which the agent
	// connects once, when it is ready: it writes one Hello as a JSON line,
	// reads one line "ok", and closes.
	HelloPort = 1025

	// HostCID is the only peer that the agent accepts.
	HostCID = 2
)

// The drives of a guest, in the order in which the host attaches them.
const (
	ImageDevice   = "/dev/vda" // read-only image, shared by all sandboxes of it
	ScratchDevice = "/dev/vdb" // ext4, this sandbox's own, empty at first
)

// InitPath is where the agent lies in the initial RAM file system.
const InitPath = "/init"

// Hello is what the agent says when it is ready for Configure. It names nothing
// that is one guest's own: a template may be taken right after it.
type Hello struct {
	Protocol int    `json:"protocol"`
	Version  string `json:"version"` // of the agent's build
}

// Routes of the agent. {id} is an execution's id.
const (
	RouteEcho      = "GET /v1/echo"                    // ?text=: up to 64 bytes, sent back
	RouteConfigure = "POST /v1/configure"              // Configure -> Configured
	RouteStart     = "PUT /v1/executions/{id}"         // Start -> frames, as for its Pull; a repeat of an id starts nothing
	RoutePull      = "POST /v1/executions/{id}/pull"   // Pull -> frames (see Frame)
	RouteSignal    = "POST /v1/executions/{id}/signal" // Signal -> 204
	RouteStdin     = "PUT /v1/executions/{id}/stdin"   // ?offset=&close=&wait_ms=; octet-stream of at most MaxStdin -> StdinTaken
	RouteResize    = "POST /v1/executions/{id}/resize" // Size -> 204
	RouteForget    = "DELETE /v1/executions/{id}"      // 204; kills it if it still runs
)

// Bounds that both sides keep.
const (
	MaxRequestBody  = 4 << 20   // bytes of a JSON request: 512 KiB of arguments, escaped
	MaxReplyBody    = 64 << 10  // bytes of a JSON reply
	MaxFramePayload = 256 << 10 // bytes of one output frame
	MaxPullBytes    = 1 << 20   // bytes of output in one Pull reply
	MaxPullWait     = 20_000    // ms that a Pull may wait for something to say
	KeepBytes       = 1 << 20   // bytes per stream that the agent keeps unacknowledged, tail first
	MaxPath         = 4096      // bytes of a file's path in a request
	MaxStdin        = 256 << 10 // bytes of one stdin request
	MaxStdinWait    = 20_000    // ms that a stdin request may wait for the program to read
	MaxTerminal     = 1000      // rows and columns of a terminal
	MaxDetail       = 256       // bytes of a refusal's detail that the client keeps
)

// Configure gives the guest its identity. It comes before anything of the
// caller's runs. It is idempotent: a generation that the agent has seen (or a
// lower one) changes nothing.
type Configure struct {
	Generation int64  `json:"generation"` // 1 at first boot
	Hostname   string `json:"hostname"`
	TimeNS     int64  `json:"time_ns"` // wall clock, ns since 1970 UTC
	Entropy    []byte `json:"entropy"` // at least 32 bytes, mixed in and the kernel's RNG reseeded
	User       string `json:"user"`    // default user of executions, from the image
	Workdir    string `json:"workdir"` // default directory, made if missing, owned by User
	// Env is the image's environment (PATH, LANG); never a caller's secret.
	Env map[string]string `json:"env"`
}

// Configured answers Configure.
type Configured struct {
	Generation int64 `json:"generation"` // the one now in force
}

// Start asks for one program.
type Start struct {
	Cmd  string            `json:"cmd"`
	Args []string          `json:"args,omitempty"`
	Cwd  string            `json:"cwd,omitempty"`  // relative to the image's working directory; "" is that directory
	User string            `json:"user,omitempty"` // a name in the guest; "" is the image's default user
	Env  map[string]string `json:"env,omitempty"`  // added to the image's; never logged

	// StdinOpen connects stdin to RouteStdin; else it is empty.
	StdinOpen bool `json:"stdin_open,omitempty"`
	// TTY runs it on a terminal of that size, as the leader of its session.
	// Stdin comes by RouteStdin; what it prints, on stderr too, is stdout.
	TTY *Size `json:"tty,omitempty"`

	Pull Pull `json:"pull"` // the reply goes on as the reply to this
}

// Size is the size of a terminal, 1..MaxTerminal each.
type Size struct {
	Rows int `json:"rows"`
	Cols int `json:"cols"`
}

// StdinTaken answers a stdin request. What was sent below Offset is with the
// program, or was thrown away because it has closed its stdin; the rest is to
// be sent again. A request whose offset is lower than what was taken adds
// nothing twice; one whose offset is higher is refused.
type StdinTaken struct {
	Offset int64 `json:"offset"`
	Closed bool  `json:"closed"` // no more is taken: the close was carried out, or the program has ended or closed it
}

// Started is what a StartedFrame carries.
type Started struct {
	PID int `json:"pid"` // as the guest sees it
}

// Pull acknowledges output below the two offsets and asks for what follows. Its
// reply begins with a StartedFrame, at once; what follows comes as soon as there
// is output, the end of the execution, or WaitMS is over. Offsets count all
// bytes that the program ever wrote to that stream.
type Pull struct {
	Stdout int64 `json:"stdout"`
	Stderr int64 `json:"stderr"`
	WaitMS int   `json:"wait_ms"` // 0..MaxPullWait
}

// Exit is the end of an execution as the guest tells it.
type Exit struct {
	ExitCode    *int   `json:"exit_code"` // nil when a signal ended it
	Signal      string `json:"signal"`    // "SIGKILL", or ""
	OOMKilled   bool   `json:"oom_killed"`
	StdoutBytes int64  `json:"stdout_bytes"` // all that was ever written
	StderrBytes int64  `json:"stderr_bytes"`
}

// Signal sends a signal to the execution's process group while the program
// runs, and to every process of its cgroup that left the group.
type Signal struct {
	Signal string `json:"signal"` // "SIGTERM", "SIGKILL" ..
}

// Code is why the agent refused a request. The list is closed: the host takes
// an unknown code for ErrProtocol.
type Code string

// The codes, with the HTTP status that carries each.
const (
	CommandNotFound  Code = "command_not_found" // 422
	PermissionDenied Code = "permission_denied" // 422
	BadDirectory     Code = "bad_directory"     // 422
	UserNotFound     Code = "user_not_found"    // 422
	StartFailed      Code = "start_failed"      // 422: any other refusal of the guest's kernel
	NoExecution      Code = "no_execution"      // 404
	FileNotFound     Code = "file_not_found"    // 404
	NotAFile         Code = "not_a_file"        // 422: a directory, device, FIFO or socket
	DiskFull         Code = "disk_full"         // 507
	Conflict         Code = "conflict"          // 409: the file is not as long as the caller thinks, or somebody else writes it
	Exists           Code = "exists"            // 409: something else is there already
	NotEmpty         Code = "not_empty"         // 409: a directory with entries
	OtherDisk        Code = "other_disk"        // 409: a move from one file system to another
	UnsafeMember     Code = "unsafe_member"     // 400: of an archive; Detail is its name
	RangeInvalid     Code = "range_invalid"     // 416: begins behind the end; Detail is the file's size
	TooDeep          Code = "too_deep"          // 422: directories in each other
	TooMuch          Code = "too_much"          // 429: of what the agent does at once, or of what it keeps in memory
	NotConfigured    Code = "not_configured"    // 409: Configure has not come yet
	NoStdin          Code = "no_stdin"          // 409: started without StdinOpen or TTY
	NoTerminal       Code = "no_terminal"       // 409: started without TTY
	BadRequest       Code = "bad_request"       // 400
	Failed           Code = "failed"            // 500
)

var statusOf = map[Code]int{
	CommandNotFound: 422, PermissionDenied: 422, BadDirectory: 422, UserNotFound: 422, StartFailed: 422,
	NoExecution: 404, FileNotFound: 404, NotAFile: 422, DiskFull: 507,
	Conflict: 409, Exists: 409, NotEmpty: 409, OtherDisk: 409, UnsafeMember: 400, RangeInvalid: 416, TooDeep: 422, TooMuch: 429, NotConfigured: 409, NoStdin: 409, NoTerminal: 409, BadRequest: 400, Failed: 500,
}

// Status is the HTTP status that carries the code; 0 for a code that does not exist.
func (c Code) Status() int { return statusOf[c] }

// Error is a refusal by the agent. Detail says of what, as the code says, or is
// for people who debug an agent. It is guest output: the client keeps at most
// MaxDetail bytes of it, Error does not show it, and whoever does escapes it.
type Error struct {
	Code   Code   `json:"code"`
	Detail string `json:"detail,omitempty"`
}

func (e *Error) Error() string { return fmt.Sprintf("guest agent: %s", e.Code) }

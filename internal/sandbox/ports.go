package sandbox

import (
	"context"
	"errors"
	"time"

	"github.com/microvmd/microvm/internal/guestwire"
	"github.com/microvmd/microvm/internal/image"
	"github.com/microvmd/microvm/internal/secret"
)

// Plan is everything an adapter needs to make the microVM of one sandbox. It is
// computed once, before the first step.
type Plan struct {
	ID         string // the sandbox's id, "sb_01H..."
	Host       string // its name on the host, "sb-01h...": of its jail and its cgroup
	Slot       int    // 0..slots-1; uid and addresses follow from it
	VCPUs      int
	MemMiB     int
	Image      image.Image
	ScratchMiB int
	Template   string // the template that it is restored from; "" is a cold boot
}

// Cgroups holds one cgroup per sandbox, with the limits of its plan, below the
// node's own. Names are Plan.Host. Every method is idempotent; what is not
// there counts as removed, killed and empty.
type Cgroups interface {
	// Create makes the cgroup with all its limits set. It fails when one with
	// processes in it is there.
	Create(ctx context.Context, plan Plan) error
	// Emptied waits until the last process of a cgroup that had one is gone.
	// It returns nil then, and the context's error otherwise.
	Emptied(ctx context.Context, host string) error
	// Kill ends every process in it with SIGKILL and waits until it is empty.
	Kill(ctx context.Context, host string) error
	// Remove deletes the empty cgroup.
	Remove(ctx context.Context, host string) error
	// List names all cgroups that this node made.
	List(ctx context.Context) ([]string, error)
	// CPUTime is what the processes in it have used so far: a VMM that waits
	// for a busy host uses some, one that hangs does not.
	CPUTime(ctx context.Context, host string) (time.Duration, error)
	// OOMKilled reports whether the host's OOM killer ended a process in it,
	// be it for its own limit or because the whole host was short of memory.
	// Once Emptied has returned nil the answer is final, until Remove.
	OOMKilled(ctx context.Context, host string) (bool, error)
}

// TemplateImage is how many characters of a template's name its image makes.
const TemplateImage = 12

// VMM makes, starts and removes microVMs.
type VMM interface {
	// Prepare makes the jail's directory with kernel, initrd, image, scratch
	// disk and listening sockets. Nothing runs yet.
	Prepare(ctx context.Context, plan Plan) error
	// Launch starts the VMM, jailed, in its cgroup, and returns when its API
	// answers.
	Launch(ctx context.Context, plan Plan) error
	// Start configures the microVM and starts its vCPUs; or, where the plan
	// names a template, loads that and lets it go on.
	Start(ctx context.Context, plan Plan) error
	// Adopt takes over a microVM that an earlier daemon started. One that is
	// paused goes on, and a half-made snapshot in its jail is removed. Its
	// exit code will not be known. When its VMM is gone it is ErrEnded.
	Adopt(ctx context.Context, plan Plan) error
	// GuestEnded reports whether a VMM, whose cgroup is empty, ended because its
	// guest stopped or rebooted, as a guest does whose agent is gone. Of one
	// that an earlier daemon started nobody can tell: false.
	GuestEnded(ctx context.Context, host string) (bool, error)
	// Remove deletes the jail, its disks and its sockets. The cgroup must be
	// empty. What is not there is no error.
	Remove(ctx context.Context, host string) error
	// List names all jails that this node made.
	List(ctx context.Context) ([]string, error)
	// SlotOf tells the slot for which a VMM was launched in a jail; -1 where
	// none was.
	SlotOf(ctx context.Context, host string) (slot int, err error)

	// TemplateOf names the template of a plan: by everything that a snapshot
	// depends on (Firecracker, processor, host kernel, guest kernel, agent,
	// image, shape, scratch size). The first TemplateImage characters are the
	// same for all templates of one image, and for those of no other.
	TemplateOf(plan Plan) string
	// Freeze pauses a cold-booted microVM whose agent has said hello and was
	// not configured, and writes its memory and devices into its jail. It
	// never goes on.
	Freeze(ctx context.Context, plan Plan) error
	// Keep makes what Freeze wrote the template of that name, as a whole or
	// not at all. The cgroup must be empty.
	Keep(ctx context.Context, host, template string) error
	// Templates names all complete templates of this node.
	Templates(ctx context.Context) ([]string, error)
	// DropTemplate removes one; microVMs that were restored from it go on.
	// What is not there is no error.
	DropTemplate(ctx context.Context, template string) error
}

// ErrEnded is the error of an Adopt that finds no VMM.
var ErrEnded = errors.New("the VMM has ended")

// Agents reaches the guest agents of started microVMs.
type Agents interface {
	// Hello waits for the agent's hello. The context bounds the wait.
	Hello(ctx context.Context, host string) (guestwire.Hello, error)
	// Client returns a client for the agent of one microVM. It is cheap,
	// pools its connections, and fails at its first call when there is no VM.
	Client(host string) *guestwire.Client
	// Release closes the client's connections.
	Release(host string)
}

// Store keeps sandboxes. A write that returned nil survives a crash.
type Store interface {
	// InsertSandbox adds a new one. A name that a sandbox that is not stopped
	// holds is a fault.ResourceAlreadyExists.
	InsertSandbox(ctx context.Context, s Sandbox) error
	UpdateSandbox(ctx context.Context, s Sandbox) error
	// Sandbox finds one by id, or fault.SandboxNotFound.
	Sandbox(ctx context.Context, id string) (Sandbox, error)
	Sandboxes(ctx context.Context, q Query) (Page, error)
	// LiveSandboxes returns all that are not stopped.
	LiveSandboxes(ctx context.Context) ([]Sandbox, error)
}

// Secrets seals environments for the Store, each for one sandbox.
type Secrets interface {
	Seal(env secret.Env, id string) (string, error)
	// Open turns back what Seal made with the same key for the same id.
	Open(sealed, id string) (secret.Env, error)
}

// Images are the node's.
type Images interface {
	// Use finds an image by id, or fault.ImageNotFound, and holds it until it
	// is released: it is not removed, and its file stays as it is.
	Use(ctx context.Context, id string, by image.By) (*image.Use, error)
	// Hold holds an image that need not be there: a microVM that runs has its
	// file open.
	Hold(id string) *image.Use
}

// Limits is what the node offers. Every one of them is a setting.
type Limits struct {
	Slots      int           // sandboxes at once
	VCPUs      int           // sum over all sandboxes
	MemMiB     int           // sum over all sandboxes, guest RAM plus VMOverheadMiB each
	MaxVCPUs   int           // of one sandbox, 1..32
	MaxMemMiB  int           // of one sandbox, >= MinMemMiB
	MaxTTL     time.Duration // of one sandbox
	ScratchMiB int           // size of each sandbox's scratch disk
	DiskMiB    int           // sum over all sandboxes' scratch disks
	Templates  int           // templates that are kept, least recently used go first; 0 is none: every create boots

	BootsAtOnce  int           // microVMs that boot at the same time; others wait their turn
	BootTurn     time.Duration // after which a boot that is not over gives its turn away
	BootTimeout  time.Duration // from the first step to a usable sandbox, however much it gets on
	StallTimeout time.Duration // without progress, after which a microVM that comes up counts as hung
	StepTimeout  time.Duration // of each single call to an agent, and of each step of a teardown

	ReconcileEvery time.Duration // what is on the host is compared with what should be
}

// Package artifact gets the things that Microvm runs on but does not hold in
// its own source: Firecracker and its jailer, the guest kernel, the images. It
// owns the manifest (manifest.yaml: names, versions, checksums, sources in
// order), the cache, and the layout of the daemon's state directory.
//
// It must not know what the things are for: it starts no microVM, reads no
// flag and no environment variable, and its checks end at bytes and names.
//
// An artifact in the cache is absent or complete, and nothing between: it is
// made in a directory beside its place, checked, synced, and renamed. One lock
// per name (flock, so a crash frees it) keeps two processes from making the
// same thing twice; the second finds what the first has made. Bytes are hashed
// again on every Ensure and Lookup, so a damaged cache is made anew and never
// used. A download that was cut goes on where it stopped, under a name that is
// its checksum.
package artifact

package microvm

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
)

// DownloadArchive copies a directory with all below it, or one file, to w as a tar
// archive, and returns how many bytes it wrote. An error says that what w holds is
// no whole archive.
func (s *FileService) DownloadArchive(ctx context.Context, sandbox string, params ReadArchiveParams, w io.Writer) (int64, error) {
	const verb = "download archive"
	segment, err := fileSegment(sandbox, params.Path)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", verb, err)
	}
	query := archiveQuery(params.Path, params.Format)
	if params.After != nil {
		query.Set("after", *params.After)
	}
	var n int64
	r := request{verb: verb, method: http.MethodGet, path: "/v1/sandboxes/" + segment + "/archive", query: query, long: true}
	err = s.c.try(ctx, r, func(reply *http.Response) (err error) {
		n, err = copyReply(w, reply)
		return err
	})
	return n, err
}

// UploadArchive unpacks a tar archive into a directory, which is made where it is
// missing. Nothing leaves the directory. What was unpacked before an error stays.
// It does not close r, and is not repeated once a byte was sent.
func (s *FileService) UploadArchive(ctx context.Context, sandbox string, params WriteArchiveParams, r io.Reader) (*ArchiveUnpacked, error) {
	query := archiveQuery(params.Path, params.Format)
	if params.Owners != nil {
		query.Set("owners", string(*params.Owners))
	}
	return about[ArchiveUnpacked](ctx, s.c, request{verb: "upload archive", method: http.MethodPut, query: query, stream: r, size: sizeOf(r)}, sandbox, params.Path, "/archive")
}

func archiveQuery(path string, format *ArchiveFormat) url.Values {
	query := url.Values{"path": {path}, "format": {string(ArchiveFormatTar)}}
	if format != nil {
		query.Set("format", string(*format))
	}
	return query
}

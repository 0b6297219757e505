package httpapi

import (
	"context"
	"io"
	"mime"
	"net/http"
	"strconv"
	"strings"

	"github.com/microvmd/microvm/internal/fault"
	"github.com/microvmd/microvm/internal/httpapi/gen"
)

// The types of archives.
const (
	tarType  = "application/x-tar"
	gzipType = "application/gzip"
)

// ReadArchive is GET /v1/sandboxes/{sandbox}/archive.
func (s *server) ReadArchive(ctx context.Context, r gen.ReadArchiveRequestObject) (gen.ReadArchiveResponseObject, error) {
	if err := checkFile(r.Sandbox, "path", r.Params.Path); err != nil {
		return nil, err
	}
	var gzip bool
	if r.Params.Format != nil {
		gzip = *r.Params.Format == gen.ArchiveFormatTarGz
	} else {
		gzip = wantsGzip(exchangeOf(ctx).request.Header)
	}
	body, err := s.Files.ReadArchive(ctx, r.Sandbox, r.Params.Path, gzip, value(r.Params.After))
	if err != nil {
		return nil, err
	}
	return archive{body: body, gzip: gzip}, nil
}

// wantsGzip says whether a caller asks for a compressed archive, and for no plain
// one as well.
func wantsGzip(header http.Header) bool {
	asked := false
	for _, part := range strings.Split(strings.Join(header.Values("Accept"), ","), ",") {
		kind, params, err := mime.ParseMediaType(part)
		if err != nil {
			continue
		}
		if weight, err := strconv.ParseFloat(params["q"], 64); err == nil && weight == 0 {
			continue
		}
		switch kind {
		case gzipType:
			asked = true
		case tarType:
			return false
		}
	}
	return asked
}

// archive is one as a reply. Nobody knows its length before its end; where it
// fails the connection is cut.
type archive struct {
	body io.ReadCloser
	gzip bool
}

// VisitReadArchiveResponse writes the reply.
func (a archive) VisitReadArchiveResponse(w http.ResponseWriter) error {
	defer func() { _ = a.body.Close() }()
	w.Header().Set("Content-Type", tarType)
	if a.gzip {
		w.Header().Set("Content-Type", gzipType)
	}
	w.WriteHeader(http.StatusOK)
	_, err := io.Copy(w, a.body)
	return err
}

// WriteArchive is PUT /v1/sandboxes/{sandbox}/archive.
func (s *server) WriteArchive(ctx context.Context, r gen.WriteArchiveRequestObject) (gen.WriteArchiveResponseObject, error) {
	if err := checkFile(r.Sandbox, "path", r.Params.Path); err != nil {
		return nil, err
	}
	gzip, err := sentGzip(r.Params.Format, exchangeOf(ctx).request.Header.Get("Content-Type"))
	if err != nil {
		return nil, err
	}
	keep := value(r.Params.Owners) == gen.WriteArchiveParamsOwnersKeep
	unpacked, err := s.Files.WriteArchive(ctx, r.Sandbox, r.Params.Path, gzip, keep, r.Body)
	if err != nil {
		return nil, err
	}
	return gen.WriteArchive200JSONResponse{
		Object: gen.ArchiveUnpackedObjectArchiveUnpacked, Entries: unpacked.Entries, Bytes: unpacked.Bytes,
	}, nil
}

// sentGzip says whether a body is compressed, by the parameter and by its type.
func sentGzip(format *gen.ArchiveFormat, header string) (bool, error) {
	kind, _, _ := mime.ParseMediaType(header)
	if format == nil {
		return kind == gzipType, nil
	}
	gzip := *format == gen.ArchiveFormatTarGz
	if kind == gzipType && !gzip || kind == tarType && gzip {
		return false, fault.Param("format", "format and the body's Content-Type say different things; send one of them, or the same")
	}
	return gzip, nil
}

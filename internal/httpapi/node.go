package httpapi

import (
	"bytes"
	"context"

	"github.com/microvmd/microvm/api"
	"github.com/microvmd/microvm/internal/httpapi/gen"
)

// GetHealth is GET /v1/health.
func (s *server) GetHealth(context.Context, gen.GetHealthRequestObject) (gen.GetHealthResponseObject, error) {
	return gen.GetHealth200JSONResponse{Object: gen.HealthObjectHealth, OK: true, Version: s.Version}, nil
}

// GetSpecification is GET /v1/openapi.yaml.
func (s *server) GetSpecification(context.Context, gen.GetSpecificationRequestObject) (gen.GetSpecificationResponseObject, error) {
	return gen.GetSpecification200ApplicationYamlResponse{SpecificationApplicationYamlResponse: specification()}, nil
}

// GetRootSpecification is GET /openapi.yaml.
func (s *server) GetRootSpecification(context.Context, gen.GetRootSpecificationRequestObject) (gen.GetRootSpecificationResponseObject, error) {
	return gen.GetRootSpecification200ApplicationYamlResponse{SpecificationApplicationYamlResponse: specification()}, nil
}

func specification() gen.SpecificationApplicationYamlResponse {
	return gen.SpecificationApplicationYamlResponse{
		Body: bytes.NewReader(api.Specification), ContentLength: int64(len(api.Specification)),
	}
}

import { PageHead } from '../components/page-head';

export function NotFoundPage() {
  return (
    <>
      <PageHead title="Page not found" />
      <p>
        This address does not exist. <a href="#/">Go to the overview.</a>
      </p>
    </>
  );
}
